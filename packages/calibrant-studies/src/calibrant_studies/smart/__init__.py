"""What SMART's tables and figures compute beyond fitting methods and measuring them."""
