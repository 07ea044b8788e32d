echo "${0##*/}" "${BASH_SOURCE##*/}" $BASH "${BASH_VERSION%%-*}" $- "$BASH_SUBSHELL" $SHLVL
