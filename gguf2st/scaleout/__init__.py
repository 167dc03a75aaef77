"""One conversion by many processes, on one machine or on many that share a file system.

    plan SRC --write P              planned.py    everything that was decided, in a file
    convert --plan P --shard i/N    work.py       the shards of a share (shares.py), into one folder (folder.py)
    finish P                        finishing.py  what is missing, or the checkpoint
    convert --engine ray            ray_engine.py one task of a Ray cluster a shard, each the same as a share of one

What a shard holds is settled by the plan, so that it does not matter who writes it, how often, or in which order.
"""
