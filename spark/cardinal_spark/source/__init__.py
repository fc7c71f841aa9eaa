"""The source ``format("cardinal")``: blocks from a stream's topics into Spark, in chain order, replayable.

Read the files in this order: `offsets` (content of a checkpoint), `feed` (a consumer that reads ahead), `planner`
(end and rows of a batch), `lake_cursor` (cursor after a lake's last row), `tasks` (complete blocks on executors),
`columns` (their messages in Arrow), `tables` (rows), `options`, `reader` (Spark's interfaces).
"""
