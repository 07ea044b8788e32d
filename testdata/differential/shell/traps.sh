trap 'echo usr1' USR1; trap 'echo hup' HUP; kill -USR1 $$; kill -HUP $$; trap -p USR1; trap - USR1; trap '' TERM; kill $$; echo survived; trap 'echo int; exit 4' INT; kill -INT $$; echo never
