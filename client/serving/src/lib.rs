//! The port of a component that is not the API server: TLS, callers that the API server knows, and the pages that
//! every component has.
//!
//! - [`Listener`]: a bound port and its certificate. [`serve`]: its connections.
//! - [`Guard`]: certificates are verified here; tokens and permissions are asked of the API server (TokenReview,
//!   SubjectAccessReview), as upstream's components do.
//! - [`Pages`]: `/metrics`, `/metrics/slis`, `/healthz`, `/livez`, `/readyz`.
//!
//! - [`unauthenticated_connections`]: how many connections strangers may hold open, here and at the API server.
//!
//! This room knows no component. The kubelet's server stands on the first two, and on the checks of the third.

mod guard;
mod listener;
mod log_check;
mod pages;
pub mod unauthenticated_connections;

pub use guard::{Access, Guard, User, verb};
pub use listener::{Body, Certificate, ClientCa, Error, Listener, Tls, respond, serve, text};
pub use log_check::log_is_written;
pub use pages::{AlwaysAllowed, Check, Extra, Pages, health, one_check, slis_page};
