"""What is done with honest confidences: answers, costs and sets, with their promises."""
