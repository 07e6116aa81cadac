"""Teaching: claims with controls, predictions, the notebook runner, exercises, quiz, leaderboard."""

from labkit.teach.claims import claim, finish
from labkit.teach.exercises.run import check, hint
from labkit.teach.predict import predict
from labkit.teach.setup import setup

__all__ = ["check", "claim", "finish", "hint", "predict", "setup"]
