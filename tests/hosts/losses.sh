# Sourced by tests/hosts/rehearsal.sh and deploy/images/test.sh: the figures of a job that must not differ by a bit.

# Reads the CSV of `nibble job metrics`; prints step, loss and gradient norm, digits as they are.
exact_figures() {
  awk -F, 'NR == 1 { for (i = 1; i <= NF; ++i) column[$i] = i
                     if (!column["step"] || !column["loss"] || !column["gradient_norm"]) { print "no such columns: " $0; exit 1 }
                     next }
           { print $column["step"], $column["loss"], $column["gradient_norm"] }'
}

# same_figures WANTED FOUND STEPS: prints the number of equal steps; fails, with the first difference, if a step differs or is missing.
same_figures() {
  local steps
  steps=$(wc -l <"$1")
  cmp -s "$1" "$2" || { echo "losses differ: $(diff "$1" "$2" | sed -n 2,4p)" && return 1; }
  ((steps == $3)) || { echo "figures of $steps steps, not of $3" && return 1; }
  echo "losses and gradient norms of $steps steps: equal, bit for bit"
}
