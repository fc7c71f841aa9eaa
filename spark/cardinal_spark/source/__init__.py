"""The source ``format("cardinal")``: blocks from a stream's topics into Spark, in chain order, replayable.

Read the files in this order: `offsets` (what a checkpoint holds), `feed` (a consumer that reads ahead), `planner`
(where a batch ends, and what it delivers), `lake_cursor` (where the lake ends), `tasks` (whole blocks on executors),
`columns` (their messages in Arrow), `tables` (rows), `options`, `reader` (Spark's interfaces).
"""
