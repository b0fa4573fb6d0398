# Sourced by tests/hosts/rehearsal.sh and deploy/images/test.sh: hosts with addresses of their own, as network namespaces on a bridge that
# is in a namespace too. Nothing of the machine's own network changes. Needs root, and Debian's iproute2 and nftables.
#
#   make_network              the bridge
#   add_host NAME ADDRESS     the host NAME at ADDRESS (10.77.0.N)
#   on NAME COMMAND...        runs a command on it
#   network_path NAME         the file of its namespace, for a container runtime
#   cut_cable NAME            nothing reaches it, and it reaches nothing
#   mend_cable NAME
#   lose_packets NAME P       P percent of the packets that reach it are lost, chosen at random; 0: none
#   lost_packets NAME         how many have been lost since then
#   remove_network

network_tag=nibble-$$
network_hosts=()

make_network() {
  ip netns add "$network_tag"
  ip -n "$network_tag" link add bridge type bridge
  ip -n "$network_tag" link set bridge up
}

add_host() {
  local name=$1 address=$2 space=$network_tag-$1
  ip netns add "$space"
  network_hosts+=("$space")
  ip -n "$network_tag" link add "$name" type veth peer name eth0 netns "$space"
  ip -n "$network_tag" link set "$name" master bridge up
  ip -n "$space" link set lo up
  ip -n "$space" link set eth0 up
  ip -n "$space" address add "$address/24" dev eth0
}

on() { ip netns exec "$network_tag-$1" "${@:2}"; }
network_path() { echo "/run/netns/$network_tag-$1"; }
cut_cable() { ip -n "$network_tag" link set "$1" down; }
mend_cable() { ip -n "$network_tag" link set "$1" up; }

lose_packets() {
  on "$1" nft delete table inet loss 2>/dev/null || true
  (($2 == 0)) && return
  on "$1" nft -f - <<RULES
table inet loss {
  chain input {
    type filter hook input priority 0;
    iif eth0 numgen random mod 100 < $2 counter drop
  }
}
RULES
}
lost_packets() { on "$1" nft list table inet loss | sed -n 's/.*counter packets \([0-9]*\) .*/\1/p'; }

remove_network() {
  local space
  for space in "${network_hosts[@]}"; do ip netns delete "$space" 2>/dev/null; done
  ip netns delete "$network_tag" 2>/dev/null
  network_hosts=()
}
