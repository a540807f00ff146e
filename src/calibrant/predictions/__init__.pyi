"""The public names of `calibrant.predictions`, and where they live."""

from calibrant.predictions.last_layer import Head as Head
from calibrant.predictions.predictions import Predictions as Predictions
from calibrant.predictions.rows import RowSummary as RowSummary
from calibrant.predictions.rows import softmax as softmax
from calibrant.predictions.rows import summarize as summarize
