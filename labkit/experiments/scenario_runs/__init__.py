"""The runs behind `labkit.experiments.scenarios`: each module registers its scenarios under their names."""
