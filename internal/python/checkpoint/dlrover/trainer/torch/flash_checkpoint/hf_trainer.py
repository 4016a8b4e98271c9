from muster.checkpoint.huggingface import FlashCkptTrainer, HfDdpCheckpointer, HfDeepSpeedCheckpointer

__all__ = ["FlashCkptTrainer", "HfDdpCheckpointer", "HfDeepSpeedCheckpointer"]
