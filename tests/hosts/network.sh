# Sourced by tests/hosts/rehearsal.sh and deploy/images/test.sh: hosts with addresses of their own, as network namespaces on a bridge that
# is in a namespace too. Nothing of the machine's own network changes. Needs root, and Debian's iproute2.
#
#   make_network              the bridge
#   add_host NAME ADDRESS     the host NAME at ADDRESS (10.77.0.N)
#   on NAME COMMAND...        runs a command on it
#   network_path NAME         the file of its namespace, for a container runtime
#   cut_cable NAME            nothing reaches it, and it reaches nothing
#   mend_cable NAME
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

remove_network() {
  local space
  for space in "${network_hosts[@]}"; do ip netns delete "$space" 2>/dev/null; done
  ip netns delete "$network_tag" 2>/dev/null
  network_hosts=()
}
