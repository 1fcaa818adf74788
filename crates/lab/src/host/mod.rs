//! What an experiment needs of the machine it runs on.
