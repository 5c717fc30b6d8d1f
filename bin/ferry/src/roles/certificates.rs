//! Upstream's flags for certificates that others have made.

use std::path::{Path, PathBuf};

use clap::Args;
use ferry_apiserver::given_files::{GivenFiles, Pair};
use ferry_auth::authenticate::RequestHeaderConfig;

#[derive(Args, Clone)]
pub struct CertificateFlags {
    /// Directory with apiserver.crt and apiserver.key, the serving certificate. If they are missing, the server creates
    /// apiserver.crt as a link to its own certificate
    #[arg(long)]
    pub cert_dir: Option<PathBuf>,
    /// Serving certificate; it takes precedence over --cert-dir
    #[arg(long, requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,
    /// Key of --tls-cert-file
    #[arg(long, requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,
    /// CA certificates that verify client certificates, in addition to the server's own
    #[arg(long)]
    pub client_ca_file: Option<PathBuf>,
    /// CA certificates that verify the client certificates of front proxies, in addition to the server's own
    #[arg(long)]
    pub requestheader_client_ca_file: Option<PathBuf>,
    /// Common names that front proxies may have [default: any]
    #[arg(long, value_delimiter = ',', requires = "requestheader_client_ca_file")]
    pub requestheader_allowed_names: Vec<String>,
    /// Headers that contain the user name, first match wins
    #[arg(long, value_delimiter = ',', default_value = "X-Remote-User")]
    pub requestheader_username_headers: Vec<String>,
    /// Headers that contain the user's UID, first match wins
    #[arg(long, value_delimiter = ',', default_value = "X-Remote-Uid")]
    pub requestheader_uid_headers: Vec<String>,
    /// Headers that contain the user's groups
    #[arg(long, value_delimiter = ',', default_value = "X-Remote-Group")]
    pub requestheader_group_headers: Vec<String>,
    /// Prefixes of headers that contain further attributes of the user
    #[arg(long, value_delimiter = ',', default_value = "X-Remote-Extra-")]
    pub requestheader_extra_headers_prefix: Vec<String>,
    /// Client certificate for requests to aggregated API servers
    #[arg(long, requires = "proxy_client_key_file")]
    pub proxy_client_cert_file: Option<PathBuf>,
    /// Key of --proxy-client-cert-file
    #[arg(long, requires = "proxy_client_cert_file")]
    pub proxy_client_key_file: Option<PathBuf>,
    /// Client certificate for requests to kubelets
    #[arg(long, requires = "kubelet_client_key")]
    pub kubelet_client_certificate: Option<PathBuf>,
    /// Key of --kubelet-client-certificate
    #[arg(long, requires = "kubelet_client_certificate")]
    pub kubelet_client_key: Option<PathBuf>,
    /// CA certificates that verify the serving certificates of kubelets, in addition to the server's own
    #[arg(long)]
    pub kubelet_certificate_authority: Option<PathBuf>,
}

impl CertificateFlags {
    pub fn files(self) -> GivenFiles {
        let mut request_header = RequestHeaderConfig {
            username_headers: self.requestheader_username_headers,
            uid_headers: self.requestheader_uid_headers,
            group_headers: self.requestheader_group_headers,
            extra_header_prefixes: self.requestheader_extra_headers_prefix,
            ..RequestHeaderConfig::default()
        };
        if self.requestheader_client_ca_file.is_some() {
            request_header.allowed_names = self.requestheader_allowed_names;
        }
        GivenFiles {
            serving: self
                .tls_cert_file
                .zip(self.tls_private_key_file)
                .or_else(|| self.cert_dir.as_deref().and_then(serving_pair)),
            client_ca: self.client_ca_file,
            request_header_ca: self.requestheader_client_ca_file,
            request_header,
            front_proxy_client: self.proxy_client_cert_file.zip(self.proxy_client_key_file),
            kubelet_client: self.kubelet_client_certificate.zip(self.kubelet_client_key),
            kubelet_ca: self.kubelet_certificate_authority,
        }
    }
}

/// Upstream writes the certificate that it made for itself to `--cert-dir`, where scripts find whom to trust. A link is
/// never older than the certificate; without a key beside it nobody takes it for one that was given.
pub fn show_own(directory: &Path, own: &Path) -> std::io::Result<()> {
    let shown = directory.join("apiserver.crt");
    if serving_pair(directory).is_some() || shown.exists() {
        return Ok(());
    }
    std::fs::create_dir_all(directory)?;
    match std::fs::remove_file(&shown) {
        // A link to what is no longer there.
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    std::os::unix::fs::symlink(std::path::absolute(own)?, shown)
}

fn serving_pair(directory: &Path) -> Option<Pair> {
    let (certificate, key) = (directory.join("apiserver.crt"), directory.join("apiserver.key"));
    (certificate.is_file() && key.is_file()).then_some((certificate, key))
}
