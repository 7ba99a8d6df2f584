"""Mirror-BERT: its configuration, losses and Trainer, and what every training run of this project needs.
Must not know: CMLM, studies or tools."""
