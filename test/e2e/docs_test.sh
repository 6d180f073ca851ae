#!/bin/bash
# SPDX-License-Identifier: MIT
# The manual pages and the completions name exactly the options and commands of the option tables.
#   docs_test.sh ROOT
. "$(dirname "$0")/tap.sh"
root=$1
man=$root/doc/man

commands=$("$DIBS" help | sed -n '/^Commands:/,/^$/s/^  \([a-z-]*\) .*/\1/p' | sort)
globals=$("$DIBS" help | sed -n '/^Options/,/^$/s/^  --\([a-z-]*\).*/\1/p' | sort)
like 'there are commands' "$(echo $commands)" 'break .* run .* watch'
is 'there are options of every command' "$(echo $globals)" 'help json owner quiet store'

# Options of a command in addition to the common ones.
own_options() {
  if [ "$1" = bench ]; then
    "$DIBS" bench lease --help | sed -n 's/^  --\([a-z-]*\) .*/\1/p'
  elif [ "$1" = lab ] || [ "$1" = serve ] || [ "$1" = gate ]; then # a program of its own
    "$DIBS" "$1" --help | sed -n 's/^  --\([a-z-]*\) .*/\1/p'
  else
    "$DIBS" help "$1" | sed -n '/^Options/,/^$/s/^  --\([a-z-]*\).*/\1/p'
  fi | sort | comm -23 - <(echo "$globals")
}
# Those of `dibs gate fence` are a list of their own to a shell.
completed_options() { (own_options "$1"; echo "$globals") | grep . | grep -vx "$([ "$1" = gate ] && echo set)" | sort; }
page_options() { sed -n '/^\.Sh OPTIONS/,/^\.Sh [^O]/s/^\.It Fl Fl \([a-z-]*\).*/\1/p' "$1" | sort; }
synopsis_options() { sed -n '/^\.Sh SYNOPSIS/,/^\.Sh D/p' "$1" | grep -o 'Fl Fl [a-z-]\+' | sed 's/Fl Fl //' | sort -u; }

is 'dibs(1) describes every common option' "$(page_options "$man/dibs.1")" "$globals"
is 'dibs(1) names every command' "$(sed -n 's/^\.Xr dibs-\([a-z-]*\) 1$/\1/p' "$man/dibs.1" | sort)" "$commands"
is 'dibs(1) has the table of exit codes' "$(sed -n '/^\.Sh EXIT/,/^\.Sh EXAM/s/^\.It \([0-9]*\).*/\1/p' "$man/dibs.1")" \
  "$("$DIBS" help exits | awk '{ print $1 }')"
for status in $("$DIBS" help exits | sed -n 's/.*\[\(.*\)\]$/\1/p'); do
  [ "$status" = OK ] || like "dibs(1) says where $status goes" "$(cat "$man/dibs.1")" "[( ]$status[,)]"
done
for command in $commands; do
  page=$man/dibs-$command.1
  ok "dibs-$command(1) is there" test -f "$page"
  ok "dibs-$command(1) is installed" grep -q "'dibs-$command.1'" "$man/meson.build"
  own=$(own_options "$command")
  is "dibs-$command(1) describes its options" "$(page_options "$page")" "$own"
  is "dibs-$command(1) has its options in the synopsis" "$(synopsis_options "$page" | comm -23 - <(echo "$globals"))" "$own"
  # Word for word: help, the page and the completions.
  summary=$(sed -n 's/^\.Nd //p' "$page")
  is "dibs-$command(1) has the summary of dibs help" "$summary" "$("$DIBS" help | sed -n "s/^  $command  *//p")"
  ok "zsh: the summary of $command" grep -qF "'$command:$summary'" "$root/completions/_dibs"
  ok "fish: the summary of $command" grep -qF -- "-a $command -d '$summary'" "$root/completions/dibs.fish"
  ok "dibs-$command(1) has an example" grep -q '^\.Sh EXAMPLES' "$page"
  codes=$("$DIBS" help "$command" | sed -n '/^Exit codes/,/^$/s/^ *\([0-9][0-9]*\) .*/\1/p')
  section=$(sed -n '/^\.Sh EXIT/,/^\.Sh EXAM/p' "$page")
  for code in $codes; do
    [ "$command:$code" = run:0 ] || like "dibs-$command(1) describes exit code $code" "$section" "(^|[^0-9])$code([^0-9]|$)"
  done
done
like 'help tier: its own --force' "$("$DIBS" help tier)" '--force .*other clients use the tiers'
like 'help stock: its own --wait' "$("$DIBS" help stock)" '--wait TIME .*\(5s\)'

if command -v mandoc >/dev/null; then
  for page in "$man"/dibs*.1; do
    is "${page##*/} is well formed" "$(mandoc -T lint -W style "$page" 2>/dev/null | grep -v 'referenced manual not found')" ''
  done
fi

# ---- bash ----
# shellcheck disable=SC1091
. "$root/completions/dibs.bash"
PATH=$dir/bin:$PATH
mkdir "$dir/bin"
ln -s "$DIBS" "$dir/bin/dibs"
completes() { # completes WORD...: what stands at the last of them
  COMP_WORDS=(dibs "$@") COMP_CWORD=$#
  COMPREPLY=()
  _dibs
  printf '%s\n' "${COMPREPLY[@]}" | sort
}
is 'bash: commands' "$(completes '')" "$commands"
for command in $commands; do
  is "bash: options of $command" "$(completes "$command" -- | sed 's/^--//' | grep .)" \
    "$(completed_options "$command")"
done
is 'bash: options of gate fence' "$(completes gate fence --)" "$( (echo set; echo "$globals") | sed 's/^/--/' | sort)"
# Of each option with a value: files, the words of the help, or nothing; never the command's own words.
: >"$dir/file.txt"
for command in serve gate; do
  while read -r option argument; do
    case $command$option:$argument in
      *:FILE) wanted=$dir/file.txt got=$(completes "$command" "$option" "$dir/fi") ;;
      serve--scope:*) wanted='admin read use' got=$(completes "$command" "$option" '') ;;
      gate--require:*) wanted='all none writes' got=$(completes "$command" "$option" '') ;;
      *:TIME | *:URI) continue ;; # examples
      *) wanted='' got=$(completes "$command" "$option" '') ;;
    esac
    is "bash: values of $command $option" "$(echo $got)" "$wanted"
    [ "$command" != gate ] || is "bash: the value of $option is no verb" "$(completes gate "$option" x '')" fence
  done < <("$DIBS" "$command" --help | sed -n 's/^  \(--[a-z-]*\) \([A-Z]*\) .*/\1 \2/p' | grep ' [A-Z]')
done
is 'bash: verbs of gate' "$(completes gate --upstream u '')" fence
"$DIBS" lock 'some name' --ttl 1h >/dev/null
is 'bash: names that are held' "$(completes show so)" 'some\ name'
is 'bash: names of gate fence' "$(completes gate fence so)" 'some\ name'
is 'bash: verbs of record' "$(echo $(completes record ''))" 'get put rm'
like 'bash: a command after --' "$(completes run x -- ech)" '^echo$'

# ---- zsh, fish: the completed words ----
for command in $commands; do
  for option in $(own_options "$command"); do
    like "zsh: $command --$option" "$(grep -E "^ +($command)\) |^  lease=|^    '.*--" "$root/completions/_dibs" | cat - \
      <(sed -n "/^ *$command)/,/;;/p" "$root/completions/_dibs"))" "--$option\["
  done
  like "zsh: $command" "$(cat "$root/completions/_dibs")" "'$command:"
done
like 'zsh: values of serve --scope' "$(sed -n '/^ *serve)/,/;;/p' "$root/completions/_dibs")" '--scope\[[^]]*\]:scope:\(read use admin\)'
like 'zsh: values of gate --require' "$(sed -n '/^ *gate)/,/;;/p' "$root/completions/_dibs")" '--require\[[^]]*\]:which:\(writes all none\)'
if command -v zsh >/dev/null; then ok 'zsh: it parses' zsh -n "$root/completions/_dibs"; fi
for option in $globals; do
  like "zsh: --$option" "$(cat "$root/completions/_dibs")" "--$option[}\[]"
  like "fish: --$option" "$(cat "$root/completions/dibs.fish")" " -l $option "
done
if command -v fish >/dev/null; then
  # A home of its own: fish writes there.  One for all, because it starts slowly.
  {
    echo "source '$root/completions/dibs.fish'"
    for command in '' $commands 'gate fence'; do echo "echo '== $command'; complete -C 'dibs $command${command:+ --}'"; done
    for words in 'serve --scope' 'gate --require'; do echo "echo '== $words'; complete -C 'dibs $words '"; done
    echo "echo '== after'; complete -C 'dibs run x -- ech'"
  } >"$dir/ask.fish"
  HOME=$dir XDG_CONFIG_HOME=$dir XDG_DATA_HOME=$dir fish --no-config "$dir/ask.fish" | cut -f 1 >"$dir/told"
  fished() { awk -v want="== $1" '/^== / { on = $0 == want; next } on' "$dir/told" | sort -u; }
  is 'fish: commands' "$(fished '')" "$commands"
  for command in $commands; do
    is "fish: options of $command" "$(fished "$command" | sed 's/^--//')" \
      "$(completed_options "$command")"
  done
  is 'fish: options of gate fence' "$(fished 'gate fence')" "$( (echo set; echo "$globals") | sed 's/^/--/' | sort)"
  is 'fish: values of serve --scope' "$(echo $(fished 'serve --scope'))" 'admin read use'
  is 'fish: values of gate --require' "$(echo $(fished 'gate --require'))" 'all none writes'
  like 'fish: behind -- a command' "$(fished after)" '^echo$'
fi
done_testing
