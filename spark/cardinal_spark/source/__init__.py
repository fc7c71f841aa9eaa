"""The source ``format("cardinal")``: blocks from a stream's topics into Spark, in chain order, replayable.

Read the files in this order: `offsets` (what a checkpoint holds), `digested` (records without their content), `state`,
`index`, `chain` and `planner` (pure: which blocks a batch delivers), `window` (reading ahead), `driver` (where a batch
ends), `starting` (where the first one begins), `final` (the batch read), `tasks` (whole blocks on executors), `tables`
(rows), `options`, `reader` (Spark's interfaces).
"""
