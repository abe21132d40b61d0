"""Random attention graphs, one per seed, rewritten and compared with what they were: `python -m tests.campaign --count 2000`.

`sketch` holds a graph that is being drawn, `areas_*` draw its parts, `draw` puts them together, `mutations` changes what a graph
means, `check` says what came of a rewrite, `chunks` runs many in processes of their own and keeps a journal.
"""
