"""Fairlead put to the test in the open: the demonstration behind ``run_demo.sh``."""
