#!/usr/bin/env bash
# The files that the installed pages name are installed with them; the lines of /etc/default, with those that are commented out, have flags that
# the programs know, of TLS, of the audit log and of backups among them.
#   documents_test.sh COORDINATOR WORKER     the programs
set -uo pipefail
export PYTHONDONTWRITEBYTECODE=1
failures=0
fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

deploy/debian/documents.sh "$work" || fail "documents.sh"
installed=$work/usr/share/doc/nibble
python3 deploy/debian/named_files.py "$installed" || fail "named files"
for file in docs/reference/job-spec.md docs/tutorial.md examples/prepare_corpus.sh deploy/prometheus/rules/alerts.yml deploy/grafana/dashboards/job.json; do
  [[ -s $installed/$file ]] || fail "no $file"
done
[[ -x $installed/examples/prepare_corpus.sh ]] || fail "prepare_corpus.sh cannot be run"
rm "$installed/docs/reference/metrics.md"
python3 deploy/debian/named_files.py "$installed" >/dev/null && fail "a missing page is not found"

# Of /etc/default/NAME, with the lines that are commented out: the words of the flags.
flags_of() {
  (
    sed 's/^#\(NIBBLE_\|  \)/\1/' "deploy/systemd/nibble-$1.default" >"$work/default"
    # shellcheck source=/dev/null
    source "$work/default"
    [[ $1 == coordinator ]] && echo "$NIBBLE_COORDINATOR_FLAGS" || echo "$NIBBLE_WORKER_FLAGS"
  )
}
for name in coordinator worker; do
  "$1" --help >"$work/help" || fail "$1 --help"
  flags=$(flags_of $name)
  wanted=(--tls-cert --tls-key --tls-ca)
  [[ $name == worker ]] || wanted+=(--audit-log --backup-directory --bootstrap-token-file)
  for flag in "${wanted[@]}"; do
    grep -q -e "$flag " <<<"$flags" || fail "nibble-$name.default has no $flag"
  done
  for flag in $(grep -o -e '--[a-z][a-z-]*' <<<"$flags"); do
    grep -q -e "$flag\b" "$work/help" || fail "nibble-$name has no $flag"
  done
  shift
done

((failures == 0)) || exit 1
echo "the package has what its pages name"
