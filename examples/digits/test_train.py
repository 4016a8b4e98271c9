"""Tests of train.py's two promises: a torn write is never loaded, and every step has one batch, whoever computes it."""
import os
import tempfile
import unittest

import torch

import train


class Checkpoint(unittest.TestCase):
    def test_resumes_where_it_was_saved(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "checkpoint.pt")
            model = train.network()
            optimizer = torch.optim.Adam(model.parameters())
            self.assertEqual(train.resume(path, model, optimizer), 0)
            train.save(path, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 7})

            with open(path + ".tmp", "wb") as torn:  # the next save died half-way
                torn.write(b"torn")
            other = train.network()
            self.assertEqual(train.resume(path, other, torch.optim.Adam(other.parameters())), 7)
            for name, want in model.state_dict().items():
                self.assertTrue(torch.equal(other.state_dict()[name], want), name)


class Batch(unittest.TestCase):
    def test_depends_on_the_step_alone(self):
        self.assertTrue(torch.equal(train.batch(3, 1, 2), train.batch(3, 1, 2)))
        self.assertFalse(torch.equal(train.batch(3, 1, 2), train.batch(4, 1, 2)))

    def test_ranks_never_share_an_image(self):
        seen = torch.cat([train.batch(5, rank, 4) for rank in range(4)])
        self.assertEqual(len(seen), 4 * 64)
        self.assertEqual(len(seen.unique()), len(seen))


if __name__ == "__main__":
    unittest.main()
