(seq 1000000; echo "end $?" >&2) | head -1; trap -p; kill -l PIPE; bash -c 'trap "" PIPE; while echo x; do :; done' | true; echo ok
