# To be sourced. say TEXT: a heading on standard error, bold on a terminal that wants colours (NO_COLOR is empty).
say() {
  if [ -t 2 ] && [ -z "${NO_COLOR:-}" ] && [ "${TERM:-dumb}" != dumb ]; then
    printf '\033[1m==> %s\033[0m\n' "$*" >&2
  else
    printf '==> %s\n' "$*" >&2
  fi
}
