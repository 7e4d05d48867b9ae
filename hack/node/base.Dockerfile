# What a kind node needs from Debian, and the node files of the kind module. Rarely changes; the programs come on top.
ARG BASE_IMAGE=debian:bookworm-slim
FROM ${BASE_IMAGE}
COPY files/usr/local/bin/ /usr/local/bin/
COPY files/kind/ /kind/
COPY files/etc/ /etc/
RUN chmod 755 /kind /kind/bin /kind/bin/* /usr/local/bin/* \
 && apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y -o Dpkg::Options::=--force-confold --no-install-recommends \
      systemd dbus conntrack iptables nftables iproute2 ethtool util-linux mount kmod libseccomp2 pigz e2fsprogs bash \
      ca-certificates curl jq procps ipset containerd runc containernetworking-plugins \
 && rm -rf /var/lib/apt/lists/* \
 # systemd in a container: no units but those that a node needs
 && find /lib/systemd/system/sysinit.target.wants/ -name systemd-tmpfiles-setup.service -delete \
 && rm -f /lib/systemd/system/multi-user.target.wants/* /etc/systemd/system/*.wants/* \
      /lib/systemd/system/local-fs.target.wants/* /lib/systemd/system/sockets.target.wants/*udev* \
      /lib/systemd/system/sockets.target.wants/*initctl* /lib/systemd/system/basic.target.wants/* \
 && echo ReadKMsg=no >> /etc/systemd/journald.conf \
 && ln -sf /lib/systemd/systemd /sbin/init \
 && ln -sf /usr/bin/containerd /usr/bin/ctr /usr/local/bin/ \
 && systemctl enable kubelet.service containerd.service undo-mount-hacks.service \
 && systemctl mask systemd-binfmt.service \
 && mkdir -p /etc/kubernetes/manifests /opt/cni/bin /kind/manifests \
 && cp /usr/lib/cni/* /opt/cni/bin/ \
 && ctr oci spec \
    | jq '.hooks.createContainer += [{"path": "/kind/bin/mount-product-files.sh"}] | del(.process.rlimits)' \
    > /etc/containerd/cri-base.json \
 && sed -i 's/restrict_oom_score_adj = false/restrict_oom_score_adj = true/' /etc/containerd/config.toml
