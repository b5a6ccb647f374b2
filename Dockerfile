# syntax=docker/dockerfile:1
# The image: the binary, the four libraries that it needs, and the CAs of the system. docs/release.md says how it is built
# and why; tests/deploy/image.rs runs the same root folder without Docker.
#
#   docker buildx build --platform linux/amd64,linux/arm64 --build-arg REVISION="$(git rev-parse HEAD)" --tag tollkeeper:0.1.0 .

FROM rust:1.95-slim-bookworm AS build
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates gcc libc6-dev
WORKDIR /build
COPY . .
RUN image/build && image/root target/release/tollkeeper /image

FROM scratch
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="tollkeeper" \
      org.opencontainers.image.description="An exact, fast rate-limit service for Envoy, gateways and microservices" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
COPY --from=build /image /
# A number, so that Kubernetes sees that it is not root.
USER 65532:65532
EXPOSE 8081 8080
HEALTHCHECK CMD ["/tollkeeper", "healthcheck"]
ENTRYPOINT ["/tollkeeper"]
# Not as variables: /bin/ratelimit reads those of envoyproxy/ratelimit, over which ours have precedence.
CMD ["serve", "--grpc-addr", "[::]:8081", "--http-addr", "[::]:8080"]
