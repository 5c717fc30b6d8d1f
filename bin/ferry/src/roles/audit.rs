//! Upstream's flags of the audit log.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ferry_apiserver::run::AuditConfig;
use ferry_auth::audit::LogFileConfig;

const MEGABYTE: u64 = 1 << 20;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Args, Clone)]
pub struct AuditFlags {
    /// Audit policy file; without it no request is audited
    #[arg(long)]
    pub audit_policy_file: Option<PathBuf>,
    /// File for audit events, one line of JSON each
    #[arg(long, requires = "audit_policy_file")]
    pub audit_log_path: Option<PathBuf>,
    /// Size in megabytes at which the log file is rotated
    #[arg(long, default_value_t = 100)]
    pub audit_log_maxsize: u64,
    /// Number of rotated log files to keep; 0 for all
    #[arg(long, default_value_t = 0)]
    pub audit_log_maxbackup: usize,
    /// Days to keep rotated log files; 0 for no limit
    #[arg(long, default_value_t = 0)]
    pub audit_log_maxage: u32,
    /// Compress rotated audit logs with gzip
    #[arg(long)]
    pub audit_log_compress: bool,
    /// Kubeconfig of the webhook that receives audit events
    #[arg(long, requires = "audit_policy_file")]
    pub audit_webhook_config_file: Option<PathBuf>,
}

impl AuditFlags {
    pub fn config(self) -> AuditConfig {
        let log = self.audit_log_path.map(|path| LogFileConfig {
            max_bytes: self.audit_log_maxsize * MEGABYTE,
            max_backups: (self.audit_log_maxbackup > 0).then_some(self.audit_log_maxbackup),
            max_age: (self.audit_log_maxage > 0).then(|| DAY * self.audit_log_maxage),
            compress: self.audit_log_compress,
            ..LogFileConfig::new(path)
        });
        AuditConfig { policy_file: self.audit_policy_file, log, webhook: self.audit_webhook_config_file }
    }
}
