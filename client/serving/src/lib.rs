//! The HTTPS port of components other than the API server: TLS, delegated authentication and authorization, and the pages
//! of every component.
//!
//! - [`Listener`]: a bound port and its certificate. [`serve`]: handles its connections.
//! - [`Guard`]: verifies client certificates itself and delegates tokens and permissions to the API server (TokenReview,
//!   SubjectAccessReview), like upstream's components.
//! - [`Pages`]: `/metrics`, `/metrics/slis`, `/healthz`, `/livez`, `/readyz`.
//! - [`unauthenticated_connections`]: limits the number of unauthenticated connections, here and in the API server.
//!
//! This crate knows no component. The kubelet's server uses the first two, and the checks of the third.

mod guard;
mod listener;
mod log_check;
mod pages;
pub mod unauthenticated_connections;

pub use guard::{Access, Guard, User, verb};
pub use listener::{Body, Certificate, ClientCa, Error, Listener, Tls, respond, serve, text};
pub use log_check::log_is_written;
pub use pages::{AlwaysAllowed, Check, Extra, Pages, health, one_check, slis_page};
