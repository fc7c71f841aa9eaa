"""The source ``format("cardinal")``: blocks from a stream's topics into Spark, in chain order, replayable.

Read the files in this order: `offsets` (what a checkpoint holds), `chain` and `planner` (pure: which blocks a batch
delivers), `digested` (records without their content), `window` (reading them), `driver` (where a batch ends), `tasks`
(reading whole blocks on executors), `tables` (rows), `options`, `reader` (Spark's interfaces).
"""
