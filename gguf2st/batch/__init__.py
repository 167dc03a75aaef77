"""Convert many models as a TOML manifest says: each in a process of its own, resumable, one failure stops nobody.

manifest   what the file says, checked as a whole before anything starts
sources    a batch of sources or folders, without one
state      a journal beside the manifest: what is done, what failed
runner     processes, disk space, the end of each
"""
