"""Chromium and JupyterLab as tests drive them: a server of one's own, pictures that must change, sliders."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

CHROMIUM_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
NO_CHROMIUM = "no Chromium on this machine (looked for chromium, chromium-browser, google-chrome)"

#: JupyterLab draws only the cells in view; a test wants all of them on the page
SHOW_ALL = """async () => {
    const content = jupyterapp.shell.currentWidget.content;
    content.notebookConfig = { ...content.notebookConfig, windowingMode: 'none' };
}"""


def find_chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Lab:
    """A JupyterLab on loopback with a token of its own and a root directory of its own."""

    def __init__(self, root: Path):
        self.root, self.token = root, secrets.token_hex(16)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        settings = root / "lab-settings"
        overrides = settings / "overrides"
        overrides.mkdir(parents=True)
        (overrides / "overrides.json").write_text(
            json.dumps(
                {
                    "@jupyterlab/apputils-extension:notification": {
                        "fetchNews": "false",
                        "checkForUpdates": False,
                    }
                }
            )
        )
        environment = {
            **os.environ,
            "JUPYTER_CONFIG_DIR": str(settings / "config"),
            "JUPYTER_DATA_DIR": str(settings / "data"),
            "JUPYTER_RUNTIME_DIR": str(settings / "runtime"),
            "JUPYTERLAB_SETTINGS_DIR": str(settings / "user"),
            "JUPYTERLAB_WORKSPACES_DIR": str(settings / "workspaces"),
            "IPYTHONDIR": str(settings / "ipython"),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        self.log = (settings / "server.log").open("w")
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "jupyterlab", "--allow-root", "--no-browser", f"--ServerApp.root_dir={root}",
                "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={self.port}", "--ServerApp.port_retries=0",
                f"--IdentityProvider.token={self.token}", "--LabApp.expose_app_in_browser=True",
                "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
                f"--LabApp.app_settings_dir={overrides}",
            ],
            env=environment, stdout=self.log, stderr=self.log, start_new_session=True, cwd=root,
        )  # fmt: skip

    def wait_until_up(self, timeout_s: float = 60.0) -> None:
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            if self.process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(
                    f"http://127.0.0.1:{self.port}/api?token={self.token}", timeout=2
                ):
                    return
            except OSError:
                time.sleep(0.1)
        self.log.flush()
        raise RuntimeError("JupyterLab did not come up:\n" + Path(self.log.name).read_text()[-2000:])

    def open(self, page, notebook: Path, timeout_s: float = 90.0) -> None:
        """Open a copy of `notebook` and wait until its kernel is ready."""
        copy = self.root / notebook.name
        if notebook.resolve() != copy.resolve():
            shutil.copyfile(notebook, copy)
        page.set_default_timeout(timeout_s * 1000)
        page.goto(f"http://127.0.0.1:{self.port}/lab/tree/{copy.name}?token={self.token}&reset")
        page.wait_for_function("window.jupyterapp?.shell?.currentWidget?.sessionContext?.isReady")
        page.evaluate(
            "async () => { await jupyterapp.shell.currentWidget.sessionContext.session.kernel.info }"
        )

    def run_all(self, page, timeout_s: float = 180.0) -> None:
        """Run all cells and wait for the last one; fails with the traceback of the first error."""
        page.set_default_timeout(timeout_s * 1000)
        page.evaluate("async () => { await jupyterapp.commands.execute('notebook:run-all-cells') }")
        errors = page.evaluate(
            """() => jupyterapp.shell.currentWidget.content.widgets.flatMap((cell, index) =>
                (cell.outputArea?.model.toJSON() ?? []).filter((output) => output.output_type === 'error')
                    .map((output) => `cell ${index + 1}: ${output.ename}: ${output.evalue}`))"""
        )
        assert not errors, errors

    def close_notebook(self, page) -> None:
        """Shut the kernel down and close the tab, so that the next notebook has the machine for itself."""
        page.evaluate(
            """async () => { const w = jupyterapp.shell.currentWidget; await w.sessionContext.shutdown(); w.dispose() }"""
        )

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()


def pictures(page, scope: str = ".jp-OutputArea-output") -> list[str]:
    """A fingerprint of every picture inside `scope`: the source of an image, the pixels of a canvas."""
    return page.evaluate(
        """(scope) => [...document.querySelectorAll(scope + ' img, ' + scope + ' canvas')].map((node) => {
            if (node.tagName === 'IMG') return node.src;
            const pixels = node.getContext('2d').getImageData(0, 0, node.width, node.height).data;
            let hash = 2166136261;
            for (const value of new Uint32Array(pixels.buffer)) hash = Math.imul(hash ^ value, 16777619);
            return node.width + 'x' + node.height + ':' + (hash >>> 0);
        })""",
        scope,
    )


def wait_for_change(
    page, before: list[str], scope: str = ".jp-OutputArea-output", timeout_s: float = 20.0
) -> list[str]:
    """Wait until some picture inside `scope` differs from `before`; returns the new fingerprints."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        now = pictures(page, scope)
        if now != before:
            return now
        page.wait_for_timeout(20)
    raise AssertionError(f"no picture changed within {timeout_s} s")


def sliders(page):
    """The handles of all ipywidgets sliders on the page, in order."""
    return page.locator(".jp-OutputArea-output .noUi-handle")


def move_slider(page, index: int, key: str = "ArrowRight", timeout_s: float = 20.0) -> list[str]:
    """Send a key to a slider's handle and wait for a changed picture; tries the other direction at the end of its range."""
    before = pictures(page)
    handle = sliders(page).nth(index)
    handle.scroll_into_view_if_needed()
    handle.focus()
    handle.press(key)
    try:
        return wait_for_change(page, before, timeout_s=min(timeout_s, 8.0))
    except AssertionError:
        handle.press("ArrowLeft" if key == "ArrowRight" else "ArrowRight")
        return wait_for_change(page, before, timeout_s=timeout_s)


def drag_slider(page, index: int, by_pixels: float = 40.0, num_moves: int = 8) -> list[str]:
    """Drag a slider's handle with the mouse and wait for a changed picture."""
    before = pictures(page)
    handle = sliders(page).nth(index)
    handle.scroll_into_view_if_needed()
    box = handle.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    for move in range(1, num_moves + 1):
        page.mouse.move(x + by_pixels * move / num_moves, y)
    page.mouse.up()
    return wait_for_change(page, before)
