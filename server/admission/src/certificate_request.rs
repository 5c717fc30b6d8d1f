//! The subject of a CertificateSigningRequest.

use base64::Engine;
use ferry_api::certificate_request::CertificateRequest;

/// Reads the PEM that stands in `spec.request`, in base64.
pub fn requested(request: &str) -> Result<CertificateRequest, String> {
    let pem = base64::prelude::BASE64_STANDARD.decode(request).map_err(|error| error.to_string())?;
    CertificateRequest::read(&pem).map_err(|error| error.to_string())
}
