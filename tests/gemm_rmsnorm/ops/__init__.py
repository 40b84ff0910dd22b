"""The two ops: `output_projection` and `row_norm`."""
