//! Errors of creating the transport.

use crate::nic::NicError;

/// Reason why the transport cannot be created on this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IbError {
    /// libibverbs is missing or has another version.
    #[error("{0}")]
    NoLibrary(String),
    /// There is no device, or the kernel has no RDMA.
    #[error(
        "no RDMA devices (`rdma link` shows none; soft-RoCE: rdma link add rxe0 type rxe netdev eth0)"
    )]
    NoDevices,
    /// There is no usable port.
    #[error("{0}")]
    NoPort(String),
    /// A verb failed.
    #[error("{}", explain(.0))]
    Verbs(#[from] NicError),
    /// There is no memory for blocks.
    #[error("no memory for message blocks")]
    NoMemory,
    /// The system's random numbers are not available.
    #[error("no random numbers")]
    NoRandom,
    /// The configuration is invalid.
    #[error("{0}")]
    Config(String),
}

/// Returns the error's text, with the remedy where locked memory is the cause.
pub(crate) fn explain(error: &NicError) -> String {
    let memory = [libc::ENOMEM, libc::EAGAIN, libc::EPERM].contains(&error.errno);
    if !memory
        || ![
            "ibv_reg_mr",
            "ibv_create_cq",
            "ibv_create_qp",
            "ibv_create_srq",
        ]
        .contains(&error.call)
    {
        return error.to_string();
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let limit = limit.map_or("unlimited".into(), |bytes| format!("{} KiB", bytes >> 10));
    format!(
        "{error}: the limit of locked memory is {limit} (`ulimit -l`); to raise it, put `* - memlock unlimited` into \
         /etc/security/limits.d/rdma.conf and log in again, or LimitMEMLOCK=infinity into the service that starts the job"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_locked_memory_names_limit_and_remedy() {
        let text = explain(&NicError {
            call: "ibv_reg_mr",
            errno: libc::ENOMEM,
        });
        assert!(
            text.contains("limit of locked memory is") && text.contains("limits.d"),
            "{text}"
        );
        let text = explain(&NicError {
            call: "ibv_modify_qp",
            errno: libc::EINVAL,
        });
        assert_eq!(text, "ibv_modify_qp: Invalid argument (os error 22)");
    }
}
