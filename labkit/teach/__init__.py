"""Teaching: claims with controls, the notebook runner, exercises, quiz, leaderboard."""

from labkit.teach.claims import claim, finish

__all__ = ["claim", "finish"]
