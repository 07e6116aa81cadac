"""JupyterLab as `make lab` starts it: on loopback, quiet, no look-ups on the network."""

import os
import shutil

c = get_config()  # type: ignore[name-defined]  # noqa: F821
c.ServerApp.ip = "127.0.0.1"
# the printed address leads to the tour
c.LabApp.default_url = "/lab/tree/notebooks/00_tour.ipynb"
# root needs the flag; a normal user does not notice it
c.ServerApp.allow_root = True
c.ServerApp.open_browser = bool(
    os.environ.get("DISPLAY") or os.environ.get("BROWSER") or shutil.which("open")
)
c.LabApp.check_for_updates_class = "jupyterlab.NeverCheckForUpdate"
c.LabApp.news_url = ""
