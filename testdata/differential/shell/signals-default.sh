# Signals below 32: what stands behind them is libc's.
while read -r name mask; do case $name in Sig[BIC][lg][knt]:) echo "$name $((16#$mask & 0x7fffffff))";; esac; done < /proc/self/status; trap
