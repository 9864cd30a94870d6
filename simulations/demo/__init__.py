"""The demonstration behind ``run_demo.sh``: real processes, faults while messages flow, proof."""
