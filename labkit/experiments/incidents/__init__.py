"""Incidents with a known root cause: load, fault, and the evidence an operator would have. The doctor may not import this.

make_incidents(seed=1, num=26, out="build/incidents")      # evidence and, apart from it, truth.json
score_folder("build/incidents")                            # what the doctor says about them
"""
