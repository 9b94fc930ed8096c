//! Counters of the loop.

/// Plain counters; names and meaning are stable (metrics and `espstat --counters` show them).
#[derive(Clone, Debug, Default)]
pub(crate) struct EngineStats {
    pub(crate) polls: u64,
    pub(crate) sleeps: u64,
    pub(crate) wakes_by_frame: u64,
    pub(crate) wakes_by_program: u64,
    pub(crate) wakes_by_timer: u64,
    pub(crate) program_wakes: u64,
    pub(crate) corruptions: u64,
    pub(crate) commands: u64,
}

impl EngineStats {
    /// (name, help, value) of each.
    pub(crate) fn list(&self) -> Vec<(&'static str, &'static str, u64)> {
        vec![
            ("engine_polls", "poll iterations", self.polls),
            ("engine_sleeps", "times the loop blocked", self.sleeps),
            (
                "engine_wakes_by_frame",
                "times a frame ended the sleep",
                self.wakes_by_frame,
            ),
            (
                "engine_wakes_by_program",
                "times a program or command ended the sleep",
                self.wakes_by_program,
            ),
            (
                "engine_wakes_by_timer",
                "times a deadline ended the sleep",
                self.wakes_by_timer,
            ),
            (
                "engine_program_wakes",
                "sleeping programs woken",
                self.program_wakes,
            ),
            (
                "engine_corruptions",
                "nonsense found in a program's shared memory",
                self.corruptions,
            ),
            (
                "engine_commands",
                "commands taken from the host",
                self.commands,
            ),
        ]
    }
}
