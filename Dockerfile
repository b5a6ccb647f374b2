# syntax=docker/dockerfile:1
# The image: the binary, the four libraries that it needs, and the CAs of the system. docs/release.md says how it is built
# and why; tests/deploy/image.rs runs the same root folder without Docker.
#
#   docker buildx build --build-arg REVISION="$(git rev-parse HEAD)" --tag tollkeeper:0.1.0 .

# The release names both by digest, which it reads from the registry.
ARG RUST_IMAGE=rust:1.95-slim-bookworm
ARG DEBIAN_IMAGE=debian:bookworm-slim

# On the platform of the builder, with a cross compiler if the image is for another one: nothing is compiled under emulation.
FROM --platform=$BUILDPLATFORM $RUST_IMAGE AS build
ARG BUILDARCH TARGETARCH
ENV CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER=x86_64-linux-gnu-gcc \
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
RUN set -eu; cross=; \
    case "$TARGETARCH" in amd64) cpu=x86_64 ;; arm64) cpu=aarch64 ;; *) exit 1 ;; esac; \
    echo "$cpu-unknown-linux-gnu" >/target; \
    rustup target add "$(cat /target)"; \
    if [ "$BUILDARCH" != "$TARGETARCH" ]; then \
      cross="gcc-$(echo $cpu | tr _ -)-linux-gnu libc6-dev-$TARGETARCH-cross"; \
    fi; \
    apt-get update; \
    apt-get install --yes --no-install-recommends gcc libc6-dev $cross
WORKDIR /build
COPY . .
ARG REVISION
ENV TOLLKEEPER_COMMIT=$REVISION
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/build/target,sharing=locked \
    image/build "$(cat /target)" && cp "target/$(cat /target)/release/tollkeeper" /tollkeeper

# What archives and packages take.
FROM scratch AS binary
COPY --from=build /tollkeeper /

# On the platform of the image, whose libraries it has.
FROM $DEBIAN_IMAGE AS root
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates
COPY image/root /usr/local/bin/image-root
COPY --from=build /tollkeeper /
RUN image-root /tollkeeper /image

FROM scratch
ARG VERSION=0.1.0
ARG REVISION=unknown
# The date of the commit, as RFC 3339.
ARG CREATED=1970-01-01T00:00:00Z
LABEL org.opencontainers.image.title="tollkeeper" \
      org.opencontainers.image.description="An exact, fast rate-limit service for Envoy, gateways and microservices" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.vendor="tollkeeper" \
      org.opencontainers.image.url="https://github.com/tollkeeper/tollkeeper" \
      org.opencontainers.image.source="https://github.com/tollkeeper/tollkeeper" \
      org.opencontainers.image.documentation="https://github.com/tollkeeper/tollkeeper/tree/main/docs" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.created="$CREATED"
COPY --from=root /image /
# A number, so that Kubernetes sees that it is not root.
USER 65532:65532
EXPOSE 8081 8080
HEALTHCHECK --interval=10s --start-period=10s CMD ["/tollkeeper", "healthcheck"]
ENTRYPOINT ["/tollkeeper"]
# Not as variables: /bin/ratelimit reads those of envoyproxy/ratelimit, over which ours have precedence.
CMD ["serve", "--grpc-addr", "[::]:8081", "--http-addr", "[::]:8080"]
