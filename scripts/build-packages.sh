# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Sourced by scripts that install packages, or look for them.

# Debian's packages that building libneotier, neotierd and neotier, and packing them, needs: the same names in Debian 12 and 13.
# shellcheck disable=SC2034 # who sources this file uses it
build_packages=(
  g++ cmake ninja-build make pkg-config dpkg-dev file
  libcli11-dev libfmt-dev nlohmann-json3-dev libzstd-dev liblemon-dev # liblemon: the min-cost flows of the oracles, header only
  liburing-dev libxxhash-dev libnuma-dev libssl-dev # the engine's tiers and keys
  libtomlplusplus-dev libcpp-httplib-dev libspdlog-dev libncurses-dev # neotierd's configuration, metrics and log, `neotier top`
)

# installed PACKAGE
installed() { dpkg-query -W -f='${db:Status-Status}' "$1" 2> /dev/null | grep -qx installed; }
