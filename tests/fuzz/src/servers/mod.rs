//! What servers and nodes read: requests, credentials, frames, archives.

mod cni;
mod credentials;
mod dns;
mod http_requests;
mod image_archive;
mod spdy;
mod store_frames;

use crate::Target;

pub const TARGETS: &[Target] = &[
    Target { name: "certificates", run: credentials::certificates, seeds: credentials::certificate_seeds },
    Target { name: "jwt", run: credentials::tokens, seeds: credentials::token_seeds },
    Target { name: "http", run: http_requests::run, seeds: http_requests::seeds },
    Target { name: "spdy", run: spdy::run, seeds: spdy::seeds },
    Target { name: "store", run: store_frames::run, seeds: store_frames::seeds },
    Target { name: "cni", run: cni::run, seeds: cni::seeds },
    Target { name: "dns", run: dns::run, seeds: dns::seeds },
    Target { name: "image", run: image_archive::run, seeds: image_archive::seeds },
];
