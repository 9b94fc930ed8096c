//! esping, espstat, esplab.
