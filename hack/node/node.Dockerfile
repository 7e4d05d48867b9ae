# A kind node: programs of Kubernetes, a bridge network and the images of the control plane, on base.Dockerfile.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
ARG KUBERNETES_VERSION
ARG PAUSE_IMAGE
COPY bin/ /usr/bin/
COPY 10-bridge.conflist /etc/cni/net.d/
COPY manifests/ /kind/manifests/
RUN printf "${KUBERNETES_VERSION}" > /kind/version \
 && sed -i "s#sandbox_image = .*#sandbox_image = \"${PAUSE_IMAGE}\"#" /etc/containerd/config.toml
COPY images.tar /kind/images.tar
RUN (containerd >/dev/null 2>&1 & echo $! > /tmp/pid) \
 && for i in $(seq 50); do ctr version >/dev/null 2>&1 && break; sleep 0.2; done \
 && ctr -n k8s.io images import --no-unpack /kind/images.tar \
 && rm /kind/images.tar && kill "$(cat /tmp/pid)" && sleep 1 && rm /tmp/pid
ENV container=docker
STOPSIGNAL SIGRTMIN+3
ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]
