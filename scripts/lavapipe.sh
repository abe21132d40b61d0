#!/usr/bin/env bash
# Installs Mesa's lavapipe, a Vulkan driver that runs on the processor, for the tests of Vulkan kernels, where apt-get is there and
# may install. Elsewhere it says why not, and those tests are skipped with the same reason.
set -uo pipefail
shopt -s nullglob
there=(/usr/share/vulkan/icd.d/lvp_icd.*.json)
if [ ${#there[@]} -gt 0 ]; then
  exit 0
fi
if ! command -v apt-get >/dev/null; then
  echo "no lavapipe: there is no apt-get; the tests of Vulkan kernels are skipped"
elif [ "$(id -u)" -ne 0 ]; then
  echo "no lavapipe: apt-get needs root; the tests of Vulkan kernels are skipped"
else
  export DEBIAN_FRONTEND=noninteractive
  if ! { timeout 120 apt-get update && timeout 240 apt-get install -y --no-install-recommends mesa-vulkan-drivers libvulkan1; } >/dev/null 2>&1; then
    echo "no lavapipe: apt-get could not install mesa-vulkan-drivers; the tests of Vulkan kernels are skipped"
  fi
fi
