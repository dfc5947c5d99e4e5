# Completion of the program quay for bash.

_quay_specs() {
  # Layers are completed up to the + that a further part follows.
  local layers='track+ limit: trace: guard+ fault:after=' backends='cpu cpu:align= mmap:'
  local done=${1%"${1##*+}"} last=${1##*+}
  [[ $1 == *+* ]] || done=''
  mapfile -t COMPREPLY < <(compgen -P "$done" -W "$layers $backends" -- "$last")
  compopt -o nospace
}

_quay() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
  # A word with ':' or '=' is several words to readline; _get_comp_words_by_ref puts it together.
  if declare -F _get_comp_words_by_ref >/dev/null; then
    _get_comp_words_by_ref -n :=, cur prev
  fi

  case $prev in
  --to | --via | --on | --between)
    _quay_specs "$cur"
    if declare -F __ltrim_colon_completions >/dev/null; then
      __ltrim_colon_completions "$cur"
    fi
    return
    ;;
  esac

  local command='' word
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case $word in
    devices | load | copy | replay | matrix)
      command=$word
      break
      ;;
    esac
  done

  local options
  case $command in
  '') options='devices load copy replay matrix --help --version' ;;
  devices) options='--json --help' ;;
  load) options='--to --json --sha256 --direct --no-progress --help' ;;
  copy) options='--via --direct --no-progress --help' ;;
  replay) options='--on --touch --json --help' ;;
  matrix) options='--between --size --json --svg --help' ;;
  esac
  if [[ -z $command || $command == devices || $cur == -* || ($command == matrix && $prev != --svg) ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$cur")
    return
  fi
  compopt -o filenames
  mapfile -t COMPREPLY < <(compgen -f -- "$cur")
}

complete -F _quay quay
