# Three images: `--target cpu`, which has no torch; `--target cpu-torch`, for models that the CPU engine does not run; `--target cuda`. Every step is a target of the Makefile, so that an image
# holds what `make` builds anywhere else. `make test-image` builds the CPU image without a Docker engine and
# streams from it.

FROM rust:1.95-slim-bookworm AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ make python3 python3-pip python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# What only the build needs is no part of the layer, which is stored two or three times while it is made. The link and the script are for
# manifests and scripts that name TGI's commands.
RUN make deploy PREFIX=/opt/penstock && ln -s penstock /opt/penstock/bin/text-generation-launcher \
    && install deploy/text-generation-server /opt/penstock/bin/ && make clean && rm -rf ~/.cache/uv ~/.cargo/registry

FROM build AS build-torch
RUN make deploy-torch PREFIX=/opt/penstock && rm -rf ~/.cache/uv

FROM build-torch AS build-cpu-torch
RUN make trim-cpu PREFIX=/opt/penstock

# The CUDA libraries come with torch; the driver comes from the host. curl is for health checks that run in the container, as it is in
# TGI's image.
FROM debian:bookworm-slim AS runtime
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates curl libgomp1 python3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 penstock \
    && mkdir /data && chown penstock:penstock /data
ENV PATH=/opt/penstock/bin:$PATH \
    PORT=80 \
    HF_HOME=/data
VOLUME /data
EXPOSE 80
USER 1000
ENTRYPOINT ["penstock"]

# Triton builds what launches its kernels where they run, and keeps kernels in the volume.
FROM runtime AS cuda
USER root
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev python3-dev \
    && rm -rf /var/lib/apt/lists/*
USER 1000
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    TRITON_CACHE_DIR=/data/.triton
COPY --from=build-torch /opt/penstock /opt/penstock

FROM runtime AS cpu-torch
COPY --from=build-cpu-torch /opt/penstock /opt/penstock

FROM runtime AS cpu
COPY --from=build /opt/penstock /opt/penstock
