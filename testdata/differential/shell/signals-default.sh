grep -E 'Sig(Ign|Blk|Cgt)' /proc/self/status; trap
