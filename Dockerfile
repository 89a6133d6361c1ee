# wopr in a container: see packaging/README.md for how to run it.

FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
COPY . .
# The caches stay on the build host; only the binary leaves this stage.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --locked --profile dist --package wopr \
    && install -D target/dist/wopr /out/wopr

FROM debian:bookworm-slim
# Outbound TLS verifies against the system's roots. Copied, so that the image needs no package installed.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/wopr /usr/local/bin/wopr
COPY LICENSE /usr/share/doc/wopr/LICENSE

# A fixed number, so that the owner of a volume stays the owner when the image is built anew.
RUN groupadd --gid 10001 wopr \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin wopr \
    && install --directory --owner wopr --group wopr --mode 0700 /data \
    && install --directory /workflows
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8080
STOPSIGNAL SIGTERM

HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 \
    CMD ["wopr", "doctor", "--server", "http://127.0.0.1:8080"]

ENTRYPOINT ["wopr"]
CMD ["serve", "--listen", "0.0.0.0:8080", "--store", "sqlite:/data/wopr.db", "--workflows", "/workflows"]
