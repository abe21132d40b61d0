"""Attention over several devices, a process for each: from modules that compute a part of an attention, and torch.distributed,
which exchanges keys and values or partial results. `modules` builds what the others run; only it needs the compiler."""
